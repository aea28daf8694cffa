"""How the processes of a job begin and end."""
