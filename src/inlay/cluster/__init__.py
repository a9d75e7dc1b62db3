"""Several instances behind one address: who is there, and where each request goes."""
