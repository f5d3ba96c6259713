"""The symbolic game behind other libraries' interfaces. Each module needs its library; nothing here imports another."""
