"""Where code of the policy runs: one interface, several isolation levels.

bwrap.py    the default: namespaces made by bubblewrap, entered by an agent process
local.py    level "none": plain subprocesses, for tests
probe.py    finds out by trying which level works here, and opens it
inside/     what runs outside the driver process: the launcher and the agent (standard library only)
"""
