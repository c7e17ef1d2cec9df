"""Generated Python packages with bugs in them, and the environment in which an agent repairs them.

families -> package -> mutate -> tasks     what there is to repair (pure functions of a seed)
runner                                     the small test runner that is shipped into every sandbox
env                                        RepairEnv: tools, first prompt, score
expert                                     scripted episodes for the warm start
"""
