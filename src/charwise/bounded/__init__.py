"""What can be said of texts where only the k best next tokens are known: bounds."""
