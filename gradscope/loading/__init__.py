"""Makes a workload of a config: model, inputs, loss and optimizer, ready to run.

Only this room imports users' code. A new kind of spec is a file in specs/, a new kind of input a
file in sources/. workload.py has the order of all steps.
"""
