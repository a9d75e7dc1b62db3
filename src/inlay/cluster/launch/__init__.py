"""Starts the processes of a deployment: as child processes, or on other machines."""
