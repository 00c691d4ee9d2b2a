#!/bin/bash
# JupyterLab in a job: sbatch notebook.sh, then read notebook-JOB.out. It ends with scancel JOB.
# JupyterLab must be on the worker: python3 -m venv ~/jupyter && ~/jupyter/bin/pip install jupyterlab
#SBATCH --job-name=notebook
#SBATCH --gres=gpu:1
#SBATCH --time=04:00:00
#SBATCH --output=%x-%j.out
set -euo pipefail

jupyter=$HOME/jupyter/bin/jupyter
[ -x "$jupyter" ] || jupyter=jupyter
port=$((20000 + SLURM_JOB_ID % 10000))
secret=$HOME/.notebook-$SLURM_JOB_ID
trap 'rm -f "$secret"' EXIT
# The token gives access to your account. So it is in a file that only you can read, not in the output or on a command line.
(umask 077 && python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > "$secret")
JUPYTER_TOKEN=$(cat "$secret")
export JUPYTER_TOKEN

cat << END
On your computer:  ssh -N -L 8888:localhost:$port -J $USER@$SLURM_SUBMIT_HOST $USER@$SLURMD_NODENAME
In your browser:   http://localhost:8888
Token:             cat $secret
END
srun "$jupyter" lab --no-browser --ip=127.0.0.1 --port="$port" --ServerApp.port_retries=0
