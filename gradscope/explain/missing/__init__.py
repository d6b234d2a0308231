"""Why a parameter has no gradient: a second forward that follows its data."""
