"""The tests."""

import ansible.module_utils

from clusterctl.util import paths

# Where modules find what they share, as ansible.cfg has it.
ansible.module_utils.__path__.append(str(paths.content() / "plugins/module_utils"))
