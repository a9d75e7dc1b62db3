"""`inlay up`: makes processes of a deployment's file, and runs them."""
