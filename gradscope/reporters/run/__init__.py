"""Documents of a training run: header, findings, answers, tables of steps and layers, charts."""
