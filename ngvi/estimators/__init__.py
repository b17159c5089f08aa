"""Expected gradients and Hessians of a log density: what the estimators are, cost and need."""
