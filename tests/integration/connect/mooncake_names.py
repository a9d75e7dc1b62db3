"""The names of `mooncake.store` and `mooncake.engine`, and of the attributes of their classes.

JSON: by name of a module's member its public attributes, or null where it is no class.
"""

import inspect
import json

import mooncake.engine
import mooncake.store

found = {}
for module in (mooncake.store, mooncake.engine):
    for name, member in inspect.getmembers(module):
        if not name.startswith("_"):
            members = [one for one in dir(member) if not one.startswith("_")]
            found[f"{module.__name__}.{name}"] = members if inspect.isclass(member) else None
print(json.dumps(found))
