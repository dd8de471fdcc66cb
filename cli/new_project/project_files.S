// The files that `lockstep new project` writes, put into the program.
    .section .rodata
    .macro file name, path
    .global lockstep_\name\()_begin
    .global lockstep_\name\()_end
lockstep_\name\()_begin:
    .incbin "\path"
lockstep_\name\()_end:
    .byte 0
    .endm

    file net_py, net.py
    file data_py, data.py
    file run_yaml, run.yaml
    file recipe_yaml, recipe.yaml
    .section .note.GNU-stack,"",@progbits
