"""The game in texts: prompt formats, messages, and the PettingZoo environment on them."""
