"""gradscope run on training scripts as people have them, and on those in which a NaN is made."""
