"""Why a gradient is exactly zero: a second backward, watched edge by edge."""
