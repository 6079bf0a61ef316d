"""Teachers that score the student's completions."""
