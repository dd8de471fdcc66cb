// Templates of launch/, put into the program. Documents of one kind follow each other.
    .section .rodata
    .macro start_job name
    .global lockstep_\name
lockstep_\name:
    .endm
    .macro document path
    .ascii "---\n"
    .incbin "\path"
    .endm
    .macro end_job
    .byte 0
    .endm
    .macro shared_documents
    document kubernetes/base/volume.yaml
    document kubernetes/base/network_policy.yaml
    document kubernetes/base/pod_monitor.yaml
    .endm

    start_job slurm_job
    .incbin "slurm/job.sbatch"
    end_job
    start_job mpijob
    shared_documents
    document kubernetes/mpijob/job.yaml
    end_job
    start_job jobset
    shared_documents
    document kubernetes/jobset/job.yaml
    end_job
    start_job trainjob
    shared_documents
    document kubernetes/trainjob/runtime.yaml
    document kubernetes/trainjob/job.yaml
    end_job
    .section .note.GNU-stack,"",@progbits
