"""Checks Kubernetes manifests without a cluster: check_manifests.py FILE... (YAML with any number of documents)

Kinds of Kubernetes itself against its published schemas (kubernetes-validate). Kinds that operators add against the schemas
below, made by hand from their API types; pods and jobs in them are those of Kubernetes again. A field that no schema knows is
a fault. Patches of kustomize are applied by the test. Prints `KIND NAME` of each document, and a fault on stderr with exit code 1.
"""
import sys

import jsonschema
import kubernetes_validate
import yaml

VERSION = kubernetes_validate.latest_version()
TEXT, COUNT, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
ANY_MAP = {"type": "object"}  # checked elsewhere


def one_of(*words):
    return {"enum": list(words)}


def listed(item, least=0):
    return {"type": "array", "items": item, "minItems": least}


def closed(required="", **fields):
    return {"type": "object", "properties": fields, "required": required.split(), "additionalProperties": False}


NAMED = {"type": "object", "required": ["name"]}


def kind(group, name, spec):
    return closed("apiVersion kind metadata spec", apiVersion={"const": group}, kind={"const": name}, metadata=NAMED, spec=spec)


REPLICA = closed("replicas template", replicas=COUNT, restartPolicy=one_of("Never", "OnFailure", "Always", "ExitCode"), template=ANY_MAP)
MPI_JOB = kind("kubeflow.org/v2beta1", "MPIJob", closed(
    "mpiReplicaSpecs", slotsPerWorker=COUNT, runLauncherAsWorker=FLAG, sshAuthMountPath=TEXT, mpiImplementation=one_of("OpenMPI", "Intel", "MPICH"),
    launcherCreationPolicy=one_of("AtStartup", "WaitForWorkersReady"), mpiReplicaSpecs=closed("Launcher Worker", Launcher=REPLICA, Worker=REPLICA),
    runPolicy=closed(cleanPodPolicy=one_of("None", "Running", "All"), ttlSecondsAfterFinished=COUNT, activeDeadlineSeconds=COUNT, backoffLimit=COUNT,
                     suspend=FLAG, managedBy=TEXT, schedulingPolicy=closed(minAvailable=COUNT, queue=TEXT, minResources=ANY_MAP, priorityClass=TEXT,
                                                                          scheduleTimeoutSeconds=COUNT))))
NETWORK = closed(enableDNSHostnames=FLAG, subdomain=TEXT, publishNotReadyAddresses=FLAG)
SUCCESS = closed("operator", operator=one_of("All", "Any"), targetReplicatedJobs=listed(TEXT))
REPLICATED = closed("name template", name=TEXT, replicas=COUNT, template=closed("spec", metadata=ANY_MAP, spec=ANY_MAP),
                    dependsOn=listed(closed("name status", name=TEXT, status=one_of("Ready", "Complete"))))
JOB_SET_SPEC = closed(
    "replicatedJobs", network=NETWORK, successPolicy=SUCCESS, replicatedJobs=listed(REPLICATED, 1), suspend=FLAG, ttlSecondsAfterFinished=COUNT,
    startupPolicy=closed(startupPolicyOrder=one_of("AnyOrder", "InOrder")), managedBy=TEXT,
    failurePolicy=closed(maxRestarts=COUNT, restartStrategy=one_of("Recreate", "BlockingRecreate"), rules=listed(closed(
        "name action", name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:-]*[A-Za-z0-9_])?$"},
        action=one_of("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"), targetReplicatedJobs=listed(TEXT),
        onJobFailureReasons=listed(one_of("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"))))))
JOB_SET = kind("jobset.x-k8s.io/v1alpha2", "JobSet", JOB_SET_SPEC)
TRAINING_RUNTIME = kind("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", closed(
    "template", template=closed("spec", metadata=ANY_MAP, spec=JOB_SET_SPEC), podGroupPolicy=ANY_MAP,
    mlPolicy=closed(numNodes=COUNT, torch=ANY_MAP, mpi=closed(numProcPerNode=COUNT, mpiImplementation=one_of("OpenMPI", "Intel", "MPICH"),
                                                             sshAuthMountPath=TEXT, runLauncherAsNode=FLAG))))
ENVIRONMENT = listed(closed("name", name=TEXT, value=TEXT, valueFrom=ANY_MAP))
TRAIN_JOB = kind("trainer.kubeflow.org/v1alpha1", "TrainJob", closed(
    "runtimeRef", runtimeRef=closed("name", apiGroup=TEXT, kind=TEXT, name=TEXT), labels=ANY_MAP, annotations=ANY_MAP, suspend=FLAG, managedBy=TEXT,
    trainer=closed(image=TEXT, command=listed(TEXT), args=listed(TEXT), env=ENVIRONMENT, numNodes=COUNT, numProcPerNode={}, resourcesPerNode=ANY_MAP)))
SECRET_KEY = closed("name key", name=TEXT, key=TEXT, optional=FLAG)
POD_MONITOR = kind("monitoring.coreos.com/v1", "PodMonitor", closed(
    "selector podMetricsEndpoints", selector=closed(matchLabels=ANY_MAP, matchExpressions=listed(ANY_MAP)), namespaceSelector=ANY_MAP, jobLabel=TEXT,
    podTargetLabels=listed(TEXT), podMetricsEndpoints=listed(closed(
        port=TEXT, path=TEXT, interval=TEXT, scrapeTimeout=TEXT, scheme=one_of("http", "https"), honorLabels=FLAG, tlsConfig=ANY_MAP,
        authorization=closed(type=TEXT, credentials=SECRET_KEY), relabelings=listed(ANY_MAP)), 1)))
SCHEMAS = {"MPIJob": MPI_JOB, "JobSet": JOB_SET, "TrainingRuntime": TRAINING_RUNTIME, "TrainJob": TRAIN_JOB, "PodMonitor": POD_MONITOR}


def pods_and_jobs(document):
    """Kubernetes' own parts of a document of another kind, as separate documents."""
    spec = document["spec"]
    if document["kind"] == "MPIJob":
        for role, replica in spec["mpiReplicaSpecs"].items():
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role.lower(), **replica["template"].get("metadata", {})},
                   "spec": replica["template"]["spec"]}
    if document["kind"] in ("JobSet", "TrainingRuntime"):
        for job in (spec if document["kind"] == "JobSet" else spec["template"]["spec"])["replicatedJobs"]:
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, "spec": job["template"]["spec"]}


def check(document):
    schema = SCHEMAS.get(document["kind"])
    if schema is None:
        kubernetes_validate.validate(document, VERSION, strict=True)
        return
    jsonschema.validate(document, schema)
    for part in pods_and_jobs(document):
        kubernetes_validate.validate(part, VERSION, strict=True)


def main(paths):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for document in filter(None, yaml.safe_load_all(file)):
                try:
                    check(document)
                except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as fault:
                    where = ".".join(map(str, getattr(fault, "absolute_path", None) or getattr(fault, "path", [])))
                    sys.exit(f"{path}: {document['kind']} {document['metadata']['name']}: {where}: {getattr(fault, 'message', fault)}")
                print(document["kind"], document["metadata"]["name"])


if __name__ == "__main__":
    main(sys.argv[1:])
