# Checks of an installed d9d for ReFrame: the reference run, alone and on two ranks.
#
#     reframe -c packaging/reframe/d9d_check.py -S installation=/opt/d9d -r
import os

import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class D9dReference(rfm.RunOnlyRegressionTest):
    """Losses and perplexity of a small run are those of share/d9d/reference/reference.log."""

    ranks = parameter([1, 2])
    installation = variable(str, value=os.environ.get('D9D_PREFIX', '/usr/local'))
    valid_systems = ['*']
    valid_prog_environs = ['*']
    local = True  # the launcher is within the check
    launcher = variable(str, value='srun --mpi=pmix -n 2')

    @run_before('run')
    def set_command(self):
        self.executable = os.path.join(self.installation, 'share/d9d/reference/check')
        self.env_vars = {'RANKS': self.ranks}
        if self.ranks > 1:
            self.executable_opts = self.launcher.split()

    @sanity_function
    def numbers_agree(self):
        return sn.all([
            sn.assert_found(r'^ok 13 - perplexity', self.stdout),
            sn.assert_not_found(r'^not ok|^Bail out', self.stdout),
        ])
