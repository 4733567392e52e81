"""Sessions: a box that executes lists of steps, remembers what happened, and never runs an operation twice.

`steps` has the format of steps and results, `session` one session, `service` sessions and warm pools by owner, `sdk`
what users hold (SandboxSession, WarmPoolManager), on pools of this process, on a server or in pods by `engines`.
"""
