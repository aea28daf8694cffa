"""What it takes to run a job twice and compare: values, and files put back."""
