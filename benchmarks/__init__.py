"""What a person waits for, measured side by side in one run: ``make benchmark``. Ratios count, times do not."""
