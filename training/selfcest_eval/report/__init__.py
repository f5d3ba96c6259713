"""One page that says what runs and studies have shown, with its figures and numbers as files beside it."""
