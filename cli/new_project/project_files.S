// The files that `lockstep new project` writes, put into the program.
    .section .rodata
    .macro file name, path
    .global lockstep_\name
lockstep_\name:
    .incbin "\path"
    .byte 0
    .endm

    file net_py, net.py
    file data_py, data.py
    file run_yaml, run.yaml
    file recipe_yaml, recipe.yaml
    .section .note.GNU-stack,"",@progbits
