"""Messages, errors, units, block identity and KV layout. Standard library and msgspec only;
`instance_socket` has pyzmq, too.
"""
