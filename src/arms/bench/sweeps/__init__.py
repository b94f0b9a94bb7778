"""Many runs: which of them are left to train, and the engines that train them."""
