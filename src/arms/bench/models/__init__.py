"""Discrete VAEs: layers with a replica axis, networks, and likelihoods of pixels."""

from arms.bench.models.codes import code_statistics as code_statistics
from arms.bench.models.codes import evaluating as evaluating
from arms.bench.models.likelihoods import LIKELIHOODS as LIKELIHOODS
from arms.bench.models.networks import NETWORKS as NETWORKS
from arms.bench.models.networks import ReplicaLinear as ReplicaLinear
from arms.bench.models.networks import perceptron as perceptron
from arms.bench.models.networks import seeded_generator as seeded_generator
from arms.bench.models.user_models import PlainNetwork as PlainNetwork
from arms.bench.models.user_models import check_finite as check_finite
from arms.bench.models.user_models import check_registered as check_registered
from arms.bench.models.user_models import check_savable as check_savable
from arms.bench.models.user_models import keep_replicas as keep_replicas
from arms.bench.models.user_models import name_of as name_of
from arms.bench.models.user_models import replicated as replicated
from arms.bench.models.user_models import structure_of as structure_of
from arms.bench.models.vae import DiscreteVAE as DiscreteVAE
from arms.bench.models.vae import build_vae as build_vae
