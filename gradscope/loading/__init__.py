"""Config to workload: the model, its inputs, its loss, its optimizer, ready to run.

The only room that imports users' code. A new kind of spec is a file in specs/, a new kind of input
a file in sources/; workload.py is the order in which everything happens.
"""
