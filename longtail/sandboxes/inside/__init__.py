"""What runs outside the driver process. Standard library only, relative imports only.

This package is compiled into the driver's work directory and mounted read-only in the launcher's view; it is imported
there under another name, without the rest of longtail.

    driver ──> launcher (zygote.py, in the root that stage.py built)
       │          └─ fork ─> nurse (nurse.py), for one sandbox after another
       ├─────────────────────> │─ spawn ─> bubblewrap ─> pid 1 of the new namespaces, a `cat` that waits for ever
       │                       └─ fork, enter these namespaces ─> agent (agent.py)
       └───────────────────────────────────── frames (wire.py) ──> └─ fork or spawn ─> what exec() runs (runner.py)

An agent has the memory of the launcher, which holds nothing secret, and shares its address space layout.
"""
