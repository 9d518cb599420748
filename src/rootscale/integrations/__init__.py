"""Where people already train: thin shells around other libraries, each an extra and imported only when used."""
