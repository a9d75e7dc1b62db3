"""What a cluster would do: traces of requests, replayed on instances that do not exist."""
