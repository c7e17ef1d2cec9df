"""What runs outside the driver process. Standard library only, relative imports only.

This package is compiled into the driver's work directory and mounted read-only in the launcher's view; it is imported
there under another name, without the rest of longtail.

    driver ──socket──> launcher (zygote.py, in the root that stage.py built)
                          ├─ fork, exec ─> bwrap ─> pid 1 of a new sandbox (a `cat` that never ends)
                          └─ fork, enter the namespaces of that pid 1 ─> agent (agent.py)
    driver ──socketpair──────────────────────────────────────────────────> agent ─ fork ─> what exec() runs
"""
