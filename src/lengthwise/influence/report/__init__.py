"""Tables, figures and the page of an influence study."""
