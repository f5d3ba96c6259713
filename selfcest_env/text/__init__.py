"""The text face of the game: protocols, messages, and the PettingZoo view of them."""
