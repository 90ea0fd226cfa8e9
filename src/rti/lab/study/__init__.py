"""A fair study of token reductions: a list of runs, trained, scored and compared; it resumes where it stopped."""
