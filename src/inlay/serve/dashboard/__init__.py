"""The dashboard at `/dashboard`: what the instances do, what clients get of them, and why.

`view` is the page, `source` says where its numbers come from; the others make HTML of a
`ClusterStatus`, strings without state. `page.app` puts it on the server, beside the chat page.
"""
