// The recipe that recipe_template() gives, put into the program.
    .section .rodata
    .global lockstep_recipe_template_begin
    .global lockstep_recipe_template_end
lockstep_recipe_template_begin:
    .incbin "recipe_template.yaml"
lockstep_recipe_template_end:
    .byte 0
    .section .note.GNU-stack,"",@progbits
