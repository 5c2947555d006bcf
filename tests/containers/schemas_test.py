"""The examples for Kubernetes only have fields that Kubernetes and Kubeflow know.

Kubeflow publishes the schemas of its Trainer and of Kubernetes as kubeflow-trainer-api. The MPI
operator's schema is not on PyPI. Its few fields are copied here from the custom resource definition
of mpi-operator 0.6 (kubeflow.org_mpijobs.yaml), around Kubernetes' schema of a pod.
"""

import copy
import pathlib
from typing import Literal

import pytest
import yaml
from kubeflow_trainer_api import models
from pydantic import BaseModel, ConfigDict

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "containers"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ReplicaSpec(Strict):
    replicas: int | None = None
    restartPolicy: Literal["Never", "OnFailure"] | None = None  # noqa: N815
    template: dict


class ReplicaSpecs(Strict):
    Launcher: ReplicaSpec
    Worker: ReplicaSpec


class RunPolicy(Strict):
    activeDeadlineSeconds: int | None = None  # noqa: N815
    backoffLimit: int | None = None  # noqa: N815
    cleanPodPolicy: Literal["None", "Running", "All"] | None = None  # noqa: N815
    managedBy: str | None = None  # noqa: N815
    schedulingPolicy: dict | None = None  # noqa: N815
    suspend: bool | None = None
    ttlSecondsAfterFinished: int | None = None  # noqa: N815


class Spec(Strict):
    launcherCreationPolicy: Literal["AtStartup", "WaitForWorkersReady"] | None = None  # noqa: N815
    mpiImplementation: Literal["OpenMPI", "Intel", "MPICH"] | None = None  # noqa: N815
    mpiReplicaSpecs: ReplicaSpecs  # noqa: N815
    runLauncherAsWorker: bool | None = None  # noqa: N815
    runPolicy: RunPolicy | None = None  # noqa: N815
    slotsPerWorker: int | None = None  # noqa: N815
    sshAuthMountPath: str | None = None  # noqa: N815


class MPIJob(Strict):
    apiVersion: Literal["kubeflow.org/v2beta1"]  # noqa: N815
    kind: Literal["MPIJob"]
    metadata: dict
    spec: Spec


def known_to(model, resource):
    """Whether the schema takes the resource and knows all of its fields."""
    return model.from_dict(copy.deepcopy(resource)).to_dict() == resource


def is_mpijob(resource):
    MPIJob.model_validate(resource)
    templates = [each["template"] for each in resource["spec"]["mpiReplicaSpecs"].values()]
    metadata = models.IoK8sApimachineryPkgApisMetaV1ObjectMeta
    return known_to(metadata, resource["metadata"]) and all(
        known_to(models.IoK8sApiCoreV1PodTemplateSpec, template) for template in templates
    )


def is_of_trainer(resource):
    kinds = {
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
        "TrainJob": models.TrainerV1alpha1TrainJob,
    }
    right = resource["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    return right and known_to(kinds[resource["kind"]], resource)


CHECKS = {"mpijob.yaml": is_mpijob, "trainjob.yaml": is_of_trainer}


def resources():
    for name, check in CHECKS.items():
        for resource in yaml.safe_load_all((FOLDER / name).read_text()):
            yield check, resource


def fields(value, path=()):
    """The path of each field, except those with names chosen by the user."""
    if isinstance(value, dict):
        for name, below in value.items():
            if path[-1:] not in (("labels",), ("limits",)):
                yield (*path, name)
            yield from fields(below, (*path, name))
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from fields(below, (*path, place))


def changed(resource, path, change):
    """The resource with one entry of the mapping at the path changed."""
    other = copy.deepcopy(resource)
    at = other
    for step in path[:-1]:
        at = at[step]
    change(at, path[-1])
    return other


def is_taken(check, resource):
    try:
        return check(resource)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def misspell(at, name):
    at[f"{name}s"] = at.pop(name)


def give_another_type(at, name):
    at[name] = {"a": [at[name]]} if not isinstance(at[name], dict) else "text"


@pytest.mark.parametrize(("check", "resource"), [*resources()])
def test_each_field_is_known_and_typed(check, resource):
    assert is_taken(check, resource)
    paths = [*fields(resource)]
    assert len(paths) > 5
    for path in paths:
        for change in (misspell, give_another_type):
            assert not is_taken(check, changed(resource, path, change)), (change.__name__, path)
