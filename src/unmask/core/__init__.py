"""The engine: states, windows, canvases, predictions, the one loop. Knows no model, method or cache by name."""
