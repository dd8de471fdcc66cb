// The manifests of launch/kubernetes, put into the program.
    .section .rodata
    .macro file name, path
    .global lockstep_k8s_\name\()_begin
lockstep_k8s_\name\()_begin:
    .incbin "\path"
    .byte 0
    .endm

    file volume, base/volume.yaml
    file network, base/network_policy.yaml
    file monitor, base/pod_monitor.yaml
    file mpijob, mpijob/job.yaml
    file jobset, jobset/job.yaml
    file runtime, trainjob/runtime.yaml
    file trainjob, trainjob/job.yaml
    .section .note.GNU-stack,"",@progbits
