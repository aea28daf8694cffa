"""Exceptions and deaths: whose fault they are, and who swallowed them."""
