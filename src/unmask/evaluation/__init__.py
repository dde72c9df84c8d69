"""Generated tasks, their graders and the sandbox that runs answers which are code."""
