"""Why a gradient is exactly zero: a second backward, traced edge by edge."""
