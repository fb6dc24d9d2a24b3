"""The small invented world that the demo model is trained on, and how it is trained."""
