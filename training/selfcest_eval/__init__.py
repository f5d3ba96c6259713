"""The evaluation: strategies played at matched budget, their statistics, and reports of them."""
