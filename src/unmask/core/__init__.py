"""The engine: states, windows, canvases, predictions and the one loop. Knows no model, no method and no cache by name."""
