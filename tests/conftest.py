from hypothesis import settings

# The same examples every time, however busy the machine is.
settings.register_profile("rootscale", deadline=None, derandomize=True)
settings.load_profile("rootscale")
