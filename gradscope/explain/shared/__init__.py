"""What several questions need: frames, expressions, operations, module calls, the tracers."""
