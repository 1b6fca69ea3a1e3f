"""Who may come and who goes next, by what the models foresee: admission, batches, places, express."""
